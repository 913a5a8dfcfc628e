"""What is looked for in what a run is given and what it makes, and what happens when it is found."""
