"""Actions of the platform's operators on teams and users."""
