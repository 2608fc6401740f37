package tests

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel/process"
)

// TestMetricsPortFlood: any local user, and any pod in the host's network, can connect to the metrics port. Many
// connections must not exhaust evictd's descriptors or its memory.
func TestMetricsPortFlood(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd on this host")
	}
	const (
		connections     = 5000
		mostRSS         = 40 << 20
		mostDescriptors = 512
	)
	d := runBuilt(t, buildEvictd(t))
	address, err := net.ResolveTCPAddr("tcp", d.web)
	if err != nil {
		t.Fatalf("address of the metrics %q: %v", d.web, err)
	}
	for n := range connections {
		connect(t, address.Port, n%2 == 0)
	}
	d.scrape(t)
	rss, descriptors := d.resident(t), d.descriptors(t)
	if rss > mostRSS {
		t.Errorf("resident memory with %d connections = %d bytes; want at most %d", connections, rss, mostRSS)
	}
	if descriptors > mostDescriptors {
		t.Errorf("%d descriptors with %d connections; want at most %d", descriptors, connections, mostDescriptors)
	}
	t.Logf("resident %d kB, %d descriptors", rss>>10, descriptors)
}

// TestMetricsPriority: the threads that serve metrics do not inherit evictd's priority.
func TestMetricsPriority(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to run evictd on this host")
	}
	d := runBuilt(t, buildEvictd(t))
	before := d.normalThreads(t)
	const clients = 3
	for range clients {
		c, err := net.Dial("tcp", d.web)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.normalThreads(t); got < before+clients {
		t.Errorf("%d threads of normal priority with %d clients; want at least %d more than %d", got, clients, clients, before)
	}
}

// connect starts a connection to a port of this host without waiting for it, and closes it when the test ends. With
// incomplete it sends the beginning of a request.
func connect(t *testing.T, port int, incomplete bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	if incomplete {
		unix.Write(fd, []byte("GET /metrics HTTP/1.1\r\nHost: "))
	}
}

// scrape waits until evictd serves its metrics.
func (d built) scrape(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(2 * time.Minute); ; {
		response, err := client.Get("http://" + d.web + "/metrics")
		if err == nil {
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err == nil && strings.Contains(string(body), "evictd_build_info") {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no metrics within two minutes: %v", err)
		}
	}
}

func (d built) descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// normalThreads returns the number of threads with SCHED_NORMAL and a nice value of at least 0.
func (d built) normalThreads(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", d.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var tid int
		fmt.Sscan(e.Name(), &tid)
		attr, err := unix.SchedGetAttr(tid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if process.Policy(attr.Policy) == process.Normal && attr.Nice >= 0 {
			n++
		}
	}
	return n
}
