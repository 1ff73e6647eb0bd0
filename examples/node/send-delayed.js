// Sends a message that arrives on `push` two seconds later. Run: npm ci && node send-delayed.js
import { randomUUID } from 'node:crypto'
import { Consumer, FetchIsolationLevels, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const bootstrapBrokers = [process.env.TICKOVER_KAFKA__BOOTSTRAP_SERVERS ?? 'localhost:9092']
const text = `your table is ready (${randomUUID()})`

const producer = new Producer({ clientId: 'example', bootstrapBrokers, serializers: stringSerializers })
await producer.send({
  messages: [{
    topic: 'reminders', // a delay topic: the policy `reminders` matches it
    key: 'guest-7',
    value: text,
    headers: { 'tickover-delay': '2s', 'tickover-target': 'push' }
  }]
})
await producer.close()
console.log('sent to reminders, for push in 2 s')

const groupId = `example-${randomUUID()}`
const consumer = new Consumer({ clientId: 'example', groupId, bootstrapBrokers, deserializers: stringDeserializers })
const stream = await consumer.consume({
  topics: ['push'],
  mode: 'earliest',
  isolationLevel: FetchIsolationLevels.READ_COMMITTED
})
for await (const message of stream) {
  if (message.value !== text) continue
  console.log(`arrived on ${message.topic}`)
  break
}
await consumer.close(true)
