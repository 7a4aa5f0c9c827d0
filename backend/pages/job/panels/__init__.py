"""The panels of a job's page: charts, figures, verdict, failure, replicas, timeline."""
