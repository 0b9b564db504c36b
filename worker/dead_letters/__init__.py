"""What could not be projected: the letter, how much of it is kept, and the topic that holds them."""
