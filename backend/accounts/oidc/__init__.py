"""Sign-in through a company's OpenID provider."""
