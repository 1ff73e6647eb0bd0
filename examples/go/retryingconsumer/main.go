// A consumer with retries: what it fails on it forwards to `orders-retry`, and tickover brings it back.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

func brokers() string {
	if named := os.Getenv("TICKOVER_KAFKA__BOOTSTRAP_SERVERS"); named != "" {
		return named
	}
	return "localhost:9092"
}

func check(err error) {
	if err != nil {
		panic(err) // before the order is committed: it is read again
	}
}

func handle(_ string, attempt int) error {
	if attempt < 3 {
		return errors.New("the warehouse does not answer")
	}
	return nil
}

// split takes the last failure from the headers, and finds the attempt. All others stay: they count the attempts.
func split(headers []kgo.RecordHeader) (kept []kgo.RecordHeader, attempt int) {
	attempt = 1
	for _, header := range headers {
		if header.Key == "tickover-attempt" {
			attempt, _ = strconv.Atoi(string(header.Value))
		}
		if header.Key != "tickover-error-class" {
			kept = append(kept, header)
		}
	}
	return kept, attempt
}

func main() {
	ctx := context.Background()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers()),
		kgo.ConsumerGroup("go-shop"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	check(err)
	defer client.Close()
	order := &kgo.Record{Topic: "orders", Key: []byte("customer-7"), Value: []byte("order 1")}
	check(client.ProduceSync(ctx, order).FirstErr())

	for done := false; !done; check(client.CommitUncommittedOffsets(ctx)) { // yours goes on for ever
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		for _, record := range fetches.Records() {
			headers, attempt := split(record.Headers)
			failure := handle(string(record.Value), attempt)
			if failure == nil {
				fmt.Printf("%s, attempt %d: done\n", record.Value, attempt)
				done = true
				continue
			}
			fmt.Printf("%s, attempt %d: %s\n", record.Value, attempt, failure)
			why := kgo.RecordHeader{Key: "tickover-error-class", Value: []byte(fmt.Sprintf("%T", failure))}
			headers = append(headers, why)
			retry := &kgo.Record{Topic: "orders-retry", Key: record.Key, Value: record.Value, Headers: headers}
			check(client.ProduceSync(ctx, retry).FirstErr())
		}
	}
}
