"""Local servers for trying a profile and for tests: Kafka, PostgreSQL, RabbitMQ and a Spark cluster.

kafka.py, postgres.py, rabbitmq.py and spark_cluster.py each start one kind; servers.py tracks them by
process id; local_profile.py writes the profile that points to them. They listen on 127.0.0.1 only and keep
everything in one folder.
"""
