"""What is loaded by name: parts of Weft, and what other packages add, behind checks."""
