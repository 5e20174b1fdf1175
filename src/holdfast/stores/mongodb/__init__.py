"""`mongodb://`, `mongodb+srv://`: locks and state of many hosts in one collection, by the server's clock."""
