"""Kubernetes operator that watches MPTrainingJobs and creates the pods that train them.

Data flows one way: `watch` fills a cache and a queue from the API server; the `controller` takes a job from the queue,
`plan` computes a plan from its snapshot, and `apply` executes the plan with the objects that `resources` builds.
`progress` receives the workers' reports. `app` starts all parts.
"""
