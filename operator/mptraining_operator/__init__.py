"""The Kubernetes operator: it watches MPTrainingJobs and creates the pods that train them.

Data flows one way: `watch` reads the API server into a cache and a queue; the `controller` takes a job from the queue,
`plan` decides from a snapshot what to do, and `apply` writes it, with the objects that `resources` builds. `progress`
receives the workers' reports. `app` starts all parts.
"""
