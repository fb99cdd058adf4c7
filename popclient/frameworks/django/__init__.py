"""PopMQ for Django: messages that are sent if, and only if, a transaction commits.

    INSTALLED_APPS = [..., "popclient.frameworks.django"]
    POPMQ = {"endpoints": "127.0.0.1:8081"}  # the fields of popclient.ClientConfig

`send_on_commit` sends right after the commit. `enqueue` writes into an outbox table in the transaction, from which
`manage.py popmq_relay` sends; so a crash after the commit loses nothing. `manage.py popmq_consume` calls a listener.
Needs Django and SQLAlchemy: pip install 'popmq[django]'.
"""

from popclient.frameworks.django.sending import enqueue, producer, send_on_commit

__all__ = ["enqueue", "producer", "send_on_commit"]
