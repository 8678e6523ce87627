"""How good a recogniser is: hypotheses, error rates with their intervals, the page of the runs."""
