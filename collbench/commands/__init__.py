"""The commands of the command line, one thin module each."""
