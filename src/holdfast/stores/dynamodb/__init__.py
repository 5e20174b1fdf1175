"""The DynamoDB store: conditional writes of single items, and no clock but those of its clients."""
