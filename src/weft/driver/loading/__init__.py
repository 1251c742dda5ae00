"""Loading by name: parts of Weft, and plugins of other packages, behind checks."""
