"""Let proposers compete on each task before a judge, with every attempt on record."""
