"""What the Snakefile needs: config, lanes of a parse, partition files, the note of a run."""
