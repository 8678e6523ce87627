"""A country's CSVs, its ledger, and what the reasons mean."""
