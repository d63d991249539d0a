"""Ensembles: members that agree, one model with the mean of their outputs, and its evaluation."""
