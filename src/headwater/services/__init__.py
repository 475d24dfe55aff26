"""Real servers on this machine, for trying a profile and for tests: Kafka, PostgreSQL, RabbitMQ and a Spark cluster.

Each has a file that says how it is started (`kafka`, `postgres`, `rabbitmq`, `spark_cluster`); `launched` is a server
in its first seconds, `state` what is known of it later, and `local_profile` the profile that leads to all of them. They
listen on 127.0.0.1 only, keep everything in one folder, and are ended by their process ids.
"""
