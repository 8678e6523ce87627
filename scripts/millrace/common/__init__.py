"""What all lanes share: atomic files, ledgers, partitions, command lines, figures."""
