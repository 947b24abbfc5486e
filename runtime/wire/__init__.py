"""What clients and servers say to each other, read without doing any I/O."""
