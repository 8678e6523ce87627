"""What the Snakefile needs: the config, the lanes of a parse, partition files, the note of a run."""
