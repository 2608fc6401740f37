package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
)

// FuzzResponse decodes arbitrary responses. The result must be an error and the
// zero Status, or a Status that can be encoded again.
func FuzzResponse(f *testing.F) {
	f.Add([]byte(httpResponse("200 OK", "application/json", `{"pid":3,"signals":[{"signal":"memory.available","available":-1,"thresholds":[{"value":"10%"}]}]}`)))
	f.Add([]byte(httpResponse("200 OK", "application/json", `{"records":[{"pod":"a/b","decided":"2026-01-02T03:04:05Z"}],"futile":[{"signal":"pid.available"}]}`)))
	f.Add([]byte(httpResponse("400 Bad Request", "application/json", `{"error":"unknown"}`)))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>"))
	client := NewClient("/run/evictd.sock")
	none, err := json.Marshal(Status{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			return // net/http refused it
		}
		defer response.Body.Close()
		s, err := read[Status](t.Context(), client, response)
		got, encodeErr := json.Marshal(s)
		switch {
		case encodeErr != nil:
			t.Errorf("encode the decoded Status: %v", encodeErr)
		case err != nil && !bytes.Equal(got, none):
			t.Errorf("read() = %s with error %v; want the zero Status", got, err)
		}
	})
}
