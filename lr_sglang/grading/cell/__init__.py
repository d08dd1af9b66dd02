"""Where the code of answers runs: walls around it, a warden inside, and the prisoner."""
