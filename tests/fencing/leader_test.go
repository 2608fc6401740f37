package fencing

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestFenceTwoLeaders: two controllers run without leader election, by mistake. The machine is switched off once and on
// once, and recovers.
func TestFenceTwoLeaders(t *testing.T) {
	t.Parallel()
	c, program := configured(t, Enforce)
	startReplicas(t, c, program, "--leader-elect=false")
	boot, uid := c.Machines["a"].BootID(), podUID(t, c)
	began := time.Now()
	c.Machines["a"].Isolate()
	// An act is refused if the other controller has changed the fence since it was decided on, and tried again after a
	// back-off: each step may take a minute.
	for _, step := range []Kind{CommandOff, CommandOn} {
		_, err := c.AwaitEvent(t.Context(), step)
		must(t, err)
	}
	must(t, c.AwaitRecovery(t.Context(), "a", "b"))
	wantRecovered(t, c, began, boot, uid)
	calls, err := c.BMCs["a"].Log()
	must(t, err)
	if len(calls) != 2 || calls[0].Action != "power 0" || calls[1].Action != "power 1" {
		t.Errorf("the BMC got %+v; want off and on, once each", calls)
	}
}

// actTimeout is the deadline of the acts of fence_slow.
const actTimeout = 20 * time.Second

// slowAgent is a fence agent that switches with the hook of a simulated BMC. The first off of each plug hangs, before it
// switches or after it: it writes its process ID to a file then.
const slowAgent = `#!/bin/sh
while IFS='=' read -r key value; do
	case $key in
	action) action=$value ;;
	plug) plug=$value ;;
	esac
done
hook() { %[1]s/bmc-$plug/hook.sh "$plug" "$@"; }
case $action in
metadata)
	echo '<resource-agent name="fence_slow"><parameters>
<parameter name="action"><content type="string"/></parameter>
<parameter name="ip"><content type="string"/></parameter>
<parameter name="plug"><content type="string"/></parameter>
</parameters><actions><action name="on"/><action name="off"/><action name="reboot"/><action name="status"/></actions></resource-agent>' ;;
status)
	if [ "$(hook get power)" = power:1 ]; then echo "Status: ON"; exit 0; fi
	echo "Status: OFF"
	exit 2
	;;
on) hook set power 1 ;;
off)
	if mkdir "%[2]s/hung-$plug" 2>/dev/null; then
		[ "$plug" = a ] || hook set power 0
		echo $$ >"%[2]s/new" && mv "%[2]s/new" "%[2]s/pid-$plug"
		sleep 300
	fi
	hook set power 0
	;;
*) exit 1 ;;
esac
`

// useSlowAgent gives all machines the methods slow-off and slow-on of fence_slow, and returns its directory.
func useSlowAgent(t *testing.T, c *Cluster) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	syscall.ForkLock.RLock() // a process that is forked now would keep it open for writing
	err := os.WriteFile(filepath.Join(dir, "fence_slow"), fmt.Appendf(nil, slowAgent, c.Dir, dir), 0o700)
	syscall.ForkLock.RUnlock()
	must(t, err)
	objects := []corev1.ConfigMap{configMap("fence-method-template-slow", "template.properties", map[string]string{
		"agent_name": "fence_slow", "identity": "none", "unverified": "accept", "ip": "127.0.0.1", "timeout": actTimeout.String(),
	})}
	for name := range c.Machines {
		for _, action := range []string{"off", "on"} {
			objects = append(objects, configMap("fence-method-slow-"+action+"-"+name, "method.properties", map[string]string{
				"template": "fence-method-template-slow", "action": action, "plug": name,
			}))
		}
	}
	for _, m := range objects {
		must(t, c.Admin.Create(t.Context(), "/api/v1/namespaces/"+Namespace+"/configmaps", m))
	}
	for name := range c.Machines {
		must(t, c.setMethods(t.Context(), name, "slow-off slow-on"))
	}
	return dir
}

// TestLeadershipLostInOff: a leader is stopped in the middle of an off, whose agent hangs: on a before it has switched,
// on b after that. The other controller takes over and waits for the whole time of the act. When the first one goes on,
// it kills its agent and ends. Each machine is switched off once.
func TestLeadershipLostInOff(t *testing.T) {
	t.Parallel()
	c, program := configured(t, policy(map[string]string{"proof_timeout": "8s", "total_timeout": "5m", "untaint_delay": "1s", "grace": "4s"}))
	dir := useSlowAgent(t, c)
	r := startReplicas(t, c, program, "--fence-agents-dir", dir,
		"--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=500ms")
	for _, x := range [][2]string{{"a", "b"}, {"b", "a"}} {
		lost, other := x[0], x[1]
		began := time.Now()
		c.Machines[lost].Isolate()
		agent := awaitAgent(t, c, filepath.Join(dir, "pid-"+lost))
		old, _ := r.leader(t)
		must(t, old.Signal(unix.SIGSTOP))
		stopped := time.Now()
		must(t, c.poll(t.Context(), "another leader", func() (bool, error) {
			p, _ := r.leader(t)
			return p != old, nil
		}))
		_, lease := r.leader(t)
		t.Logf("%s: stopped %v after the loss, another leader %v later", lost, stopped.Sub(began).Round(time.Millisecond), time.Since(stopped).Round(time.Millisecond))
		if len(group(t, agent)) == 0 {
			t.Errorf("%s: the agent of the stopped leader has ended; want that it runs", lost)
		}
		must(t, old.Signal(unix.SIGCONT))
		select {
		case <-old.Done():
		case <-time.After(awaitTimeout):
			t.Fatalf("%s: the old leader has not ended", lost)
		}
		if left := group(t, agent); len(left) > 0 {
			t.Errorf("%s: %v of the agent of the old leader run; want none", lost, left)
		}
		if log := old.Log(); !strings.Contains(log, "leadership lost") {
			t.Errorf("%s: log of the old leader:\n%s\nwant that it has lost the leadership", lost, log)
		}
		since := func(e *Event) bool { return e.Node == lost && e.At.After(began) }
		proving, err := c.AwaitEvent(t.Context(), FenceChanged, since, func(e *Event) bool { return e.Detail == "Power-Management/Running/Proving" })
		must(t, err)
		if waited := proving.At.Sub(lease.Spec.AcquireTime.Time); waited < actTimeout {
			t.Errorf("%s: the act of the old leader was waited for for %v; want at least %v", lost, waited, actTimeout)
		}
		_, err = c.AwaitEvent(t.Context(), CommandOff, since)
		must(t, err)
		must(t, c.AwaitRecovery(t.Context(), lost, other))
		events := eventsSince(check(t, c, began), began)
		if n := count(events, CommandOff); n != 1 {
			t.Errorf("%s: %d commands to switch off; want 1", lost, n)
		}
	}
}

// group returns the processes of a group that have not ended. A zombie has.
func group(t *testing.T, id int) (running []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// After the name, which may have any character: state, parent, group.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(id) && fields[0] != "Z" && fields[0] != "X" {
			running = append(running, string(b))
		}
	}
	return running
}

// awaitAgent returns the process ID that a hanging agent has written.
func awaitAgent(t *testing.T, c *Cluster, path string) (pid int) {
	t.Helper()
	must(t, c.poll(t.Context(), path, func() (bool, error) {
		b, err := os.ReadFile(path)
		if err != nil {
			return false, nil //nolint:nilerr // it is not there yet
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil, err
	}))
	return pid
}
