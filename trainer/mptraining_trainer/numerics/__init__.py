"""Loss scaling, and the change of precision after non-finite values."""
