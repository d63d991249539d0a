"""Loss scaling, and recovery from non-finite values by checked updates and a safer precision policy."""
