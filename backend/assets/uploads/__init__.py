"""From a listing to a whole asset."""
