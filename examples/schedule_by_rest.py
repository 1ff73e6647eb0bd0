"""Schedule a message over REST: no Kafka client needed. Sending it again with the same key schedules it once.

Needs a sidecar with the policies of examples/policies.yaml, and the topics `reminders` and `push`.
"""

import os
import uuid

import httpx

URL = os.environ.get("TICKOVER_URL", "http://127.0.0.1:8230")

message = {"target": "push", "key": "guest-7", "value": "time to leave", "delay": "90s", "headers": {"language": "en"}}
idempotency_key = str(uuid.uuid4())

api = httpx.Client(base_url=URL, timeout=60)
first = api.post("/v1/messages", json=message, headers={"Idempotency-Key": idempotency_key})
first.raise_for_status()
receipt = first.json()
print(f"{first.status_code}: written to {receipt['position']['topic']}")

again = api.post("/v1/messages", json=message, headers={"Idempotency-Key": idempotency_key})
print("sent again:", "the same message" if again.json() == receipt else "another message")

refused = api.post("/v1/messages", json={**message, "target": "payroll"})
print(f"{refused.status_code}: {refused.json()['title']}")
