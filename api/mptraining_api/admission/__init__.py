"""The administrator's limits as rules: for the operator, and for the API server as ValidatingAdmissionPolicies."""
