"""Record files and their index: written, read, and made from image folders."""
