"""One file a store; the registry finds it by its URL's scheme."""
