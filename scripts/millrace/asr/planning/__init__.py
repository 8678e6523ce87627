"""The batches of an epoch, planned ahead, and the budgets that bound them."""
