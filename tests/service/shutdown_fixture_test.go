package service_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/tests/node"
)

// shutdownTest is the state that the parts of a test share.
type shutdownTest struct {
	*machine
	log  io.Writer
	node *node.Node
	pods []node.Pod
}

// marker is the file that is created when the machine would be powered off.
const marker = "/run/evictd-test-off"

// fakePowerOff replaces the unit that powers the machine off until the test ends.
func (s *shutdownTest) fakePowerOff() {
	s.t.Helper()
	for name, text := range map[string]string{
		"poweroff.target":         "[Unit]\nDescription=Replaces the power-off\nDefaultDependencies=no\nRequires=evictd-test-off.service\nAfter=evictd-test-off.service\nAllowIsolate=yes\n",
		"evictd-test-off.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/usr/bin/touch " + marker + "\n",
	} {
		path := filepath.Join(unitDir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() {
			if err := os.Remove(path); err != nil {
				s.t.Error(err)
			}
			_, _ = (&machine{t: s.t}).run("systemctl", "daemon-reload")
		})
	}
	s.must("systemctl", "daemon-reload")
}

func (s *shutdownTest) startNode(t *testing.T) {
	n, err := node.Start(t.Context(), node.Options{Dir: "/var/lib/evictd-test-node", Log: s.log, Hog: s.hog, MemoryLimit: 512 * mebibyte})
	if err != nil {
		t.Fatal(err)
	}
	s.node = n
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// groupTime is the grace period of each of the four groups in seconds: 60 s together.
const groupTime = 15

var priorities = []int{0, 100, 1000, 10_000}

// settings returns evictd's settings.
func (s *shutdownTest) settings() string {
	text := fmt.Sprintf("runtimeEndpoint: %s\ncgroupRoot: %s\nevictionHard: {}\nshutdownGracePeriodByPodPriority:\n", s.node.Endpoint(), s.node.CgroupRoot())
	for _, priority := range priorities {
		text += fmt.Sprintf("- {priority: %d, shutdownGracePeriodSeconds: %d}\n", priority, groupTime)
	}
	return text
}

// pod runs a pod with a priority. It exits on SIGTERM unless it is unresponsive.
func (s *shutdownTest) pod(t *testing.T, name string, priority int, unresponsive bool) node.Pod {
	t.Helper()
	args := []string{"hold", "-bytes", strconv.Itoa(mebibyte)}
	if unresponsive {
		args = append(args, "-ignore-term")
	}
	p, err := s.node.RunPod(t.Context(), node.PodSpec{
		Name: name, Annotations: map[string]string{"evictd.io/priority": strconv.Itoa(priority)}, TerminationGracePeriod: 5 * time.Minute,
		Containers: []node.ContainerSpec{{Args: args}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.pods = append(s.pods, p)
	s.waitStatus(name+" listed by evictd", func(st *control.Status) bool { return st.Pods.Count >= s.running(t) })
	return p
}

// running counts the pods whose container runs.
func (s *shutdownTest) running(t *testing.T) (n int) {
	t.Helper()
	for _, p := range s.pods {
		if s.alive(t, p) {
			n++
		}
	}
	return n
}

func (s *shutdownTest) alive(t *testing.T, p node.Pod) bool {
	t.Helper()
	now, err := s.node.Pod(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(now.Containers, func(c node.Container) bool { return c.Running })
}

// cleanUp removes the pods and the marker of a part.
func (s *shutdownTest) cleanUp(t *testing.T) {
	for _, p := range s.pods {
		if err := s.node.RemovePod(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	s.pods = nil
	if err := os.Remove(marker); err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// waitInhibited waits until evictd has its inhibitor lock, and checks that logind lists one.
func (s *shutdownTest) waitInhibited() {
	s.t.Helper()
	s.waitStatus("inhibitor lock", func(st *control.Status) bool { return st.Shutdown.Inhibited && st.Shutdown.Phase == "idle" })
	if n := s.locks(); n != 1 {
		s.t.Errorf("evictd has %d locks; want 1:\n%s", n, s.must("systemd-inhibit", "--list"))
	}
}

// locks returns the number of evictd's inhibitor locks.
func (s *shutdownTest) locks() int {
	s.t.Helper()
	return strings.Count(s.must("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors"), `"`+logind.Who+`"`)
}

// limit returns logind's InhibitDelayMaxSec.
func (s *shutdownTest) limit() int {
	s.t.Helper()
	out := s.must("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
	us, err := strconv.Atoi(strings.TrimPrefix(out, "t "))
	if err != nil {
		s.t.Fatalf("InhibitDelayMaxUSec = %q: %v", out, err)
	}
	return us / 1_000_000
}

// waitPowerOff waits until the machine would be powered off, and returns the time.
func (s *shutdownTest) waitPowerOff() (at time.Time) {
	s.t.Helper()
	s.eventually("power-off", func() bool {
		info, err := os.Stat(marker)
		if err == nil {
			at = info.ModTime()
		}
		return err == nil
	})
	return at
}

// record waits until a pod's eviction has finished, and returns its record.
func (s *shutdownTest) record(p node.Pod) (rec evict.Record) {
	s.t.Helper()
	s.waitStatus("end of the record of "+p.Name, func(st *control.Status) bool {
		for _, r := range st.Records {
			if r.UID == p.UID {
				rec = r
			}
		}
		// After a restart of evictd the result is unknown until it continues the eviction.
		return rec.UID != "" && rec.Result != evict.ResultPending && rec.Result != evict.ResultUnknown
	})
	if rec.Cause != evict.CauseShutdown || rec.Reason != shutdown.ReasonTerminated || rec.Message != shutdown.MessageTerminated {
		s.t.Errorf("record of %s: %s, %s, %q; want %s, Terminated, and its message", p.Name, rec.Cause, rec.Reason, rec.Message, evict.CauseShutdown)
	}
	return rec
}
