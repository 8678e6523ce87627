"""Scripts that show a defect of a released package without Millrace: run one by its path."""
