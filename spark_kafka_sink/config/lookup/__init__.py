"""What settings may take from outside: variables, files and modules, and what restricts them."""
