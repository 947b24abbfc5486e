"""Between clients, in their own words, and the scheduler: lanes and their calls."""
