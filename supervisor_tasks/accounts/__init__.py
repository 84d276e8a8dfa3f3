"""The customers' accounts in the site's directory."""
