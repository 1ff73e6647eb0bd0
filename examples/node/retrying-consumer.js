// A consumer with retries: what it fails on it forwards to `orders-retry`, and tickover brings it back.
import { Consumer, FetchIsolationLevels, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const bootstrapBrokers = [process.env.TICKOVER_KAFKA__BOOTSTRAP_SERVERS ?? 'localhost:9092']

function handle (order, attempt) {
  if (attempt < 3) throw new Error('the warehouse does not answer')
}

const producer = new Producer({ clientId: 'shop', bootstrapBrokers, serializers: stringSerializers })
const consumer = new Consumer({
  clientId: 'shop', groupId: 'node-shop', bootstrapBrokers, deserializers: stringDeserializers
})
await producer.send({ messages: [{ topic: 'orders', key: 'customer-7', value: 'order 1' }] })
const stream = await consumer.consume({
  topics: ['orders'],
  mode: 'committed',
  fallbackMode: 'earliest',
  autocommit: false,
  isolationLevel: FetchIsolationLevels.READ_COMMITTED
})
for await (const message of stream) {
  const attempt = Number(message.headers.get('tickover-attempt') ?? 1)
  let done = false
  try {
    handle(message.value, attempt)
    console.log(`${message.value}, attempt ${attempt}: done`)
    done = true // yours goes on
  } catch (error) {
    console.log(`${message.value}, attempt ${attempt}: ${error.message}`)
    const headers = new Map(message.headers).set('tickover-error-class', error.name) // keep all: they count
    await producer.send({ messages: [{ topic: 'orders-retry', key: message.key, value: message.value, headers }] })
  }
  await message.commit() // when the retry is in Kafka: else it is read again
  if (done) break
}
await consumer.close(true)
await producer.close()
