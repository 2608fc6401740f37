package execute

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func request(action Action) Request {
	return Request{
		ID: "power-management-1-0-0", Target: "n1", Agent: "fence_x", Action: action,
		NotAfter: metav1.NewMicroTime(time.Now().Add(time.Minute)), Timeout: metav1.Duration{Duration: time.Minute},
		Parameters: map[string]string{"ip": "192.0.2.1", "password": "hunter2"}, Secrets: []string{"password"},
	}
}

// files writes a request and an agent fence_x, a shell script.
func files(t *testing.T, request []byte, script string) Options {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// A process that another goroutine forks would keep the file open for writing: it could not be executed then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, "fence_x"), []byte("#!/bin/sh\ncat >"+dir+"/input\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "request.json")
	if err := os.WriteFile(path, request, 0o400); err != nil {
		t.Fatal(err)
	}
	return Options{Request: path, Report: filepath.Join(dir, "report"), AgentsDirectory: dir, NodeName: "n2"}
}

func TestRun(t *testing.T) {
	past := func(r *Request) { r.NotAfter = metav1.NewMicroTime(time.Now().Add(-time.Second)) }
	for _, tt := range []struct {
		name, script string
		action       Action
		change       func(*Request)
		node         string
		want         Result
		code         int
		err          string
		ran          bool
	}{
		{name: "off", action: Off, want: Done, ran: true},
		{name: "on", action: On, want: Done, ran: true},
		{name: "off fails", action: Off, script: "echo no plug hunter2 >&2; exit 1", want: Failed, code: 1, ran: true,
			err: "it may have taken effect: exit status 1: no plug [redacted]"},
		{name: "off exits with 2", action: Off, script: "exit 2", want: Failed, code: 1, ran: true, err: "exit status 2"},
		{name: "read on", action: Status, script: "echo Status: ON", want: ReadOn, ran: true},
		{name: "read off", action: Status, script: "echo Status: OFF; exit 2", want: ReadOff, code: 2, ran: true},
		{name: "off without the line", action: Status, script: "exit 2", want: Failed, code: 1, ran: true, err: `without "Status: OFF"`},
		{name: "much output", action: Status, script: "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo; echo Status: OFF; exit 2",
			want: ReadOff, code: 2, ran: true},
		{name: "hangs", action: Off, script: "sleep 60", change: func(r *Request) {
			r.Timeout.Duration, r.NotAfter = 3*time.Second, metav1.NewMicroTime(time.Now().Add(20*time.Second))
		},
			want: Failed, code: 1, ran: true, err: "killed"},
		{name: "hangs until notAfter", action: Off, script: "sleep 60", change: func(r *Request) {
			r.NotAfter = metav1.NewMicroTime(time.Now().Add(5 * time.Second))
		}, want: Failed, code: 1, ran: true, err: "killed"},
		{name: "late", action: Off, change: past, want: NotStarted, code: 3, err: "the pod started late, or the clocks differ"},
		{name: "late reading", action: Status, script: "exit 2", change: past, want: NotStarted, code: 3, err: "started late"},
		{name: "on the node that is fenced", action: Off, node: "n1", want: NotStarted, code: 3, err: "the pod runs on node n1, which is to be fenced"},
		{name: "on an unknown node", action: Off, node: "-", want: NotStarted, code: 3, err: "no NODE_NAME"},
		{name: "no agent", action: Off, change: func(r *Request) { r.Agent = "fence_y" }, want: NotStarted, code: 3, err: "no such file"},
		{name: "action among the parameters", action: Off, change: func(r *Request) { r.Parameters["action"] = "reboot" },
			want: NotStarted, code: 3, err: "has no parameter"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := request(tt.action)
			if tt.change != nil {
				tt.change(&r)
			}
			text, err := r.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			o := files(t, text, tt.script)
			switch tt.node {
			case "":
			case "-":
				o.NodeName = ""
			default:
				o.NodeName = tt.node
			}
			got, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if got.Result != tt.want || got.ExitCode() != tt.code || !strings.Contains(got.Error, tt.err) || (got.Error == "") != (tt.err == "") {
				t.Errorf("Run = %+v, exit code %d; want %s, %d, error %q", got, got.ExitCode(), tt.want, tt.code, tt.err)
			}
			message, err := os.ReadFile(o.Report)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := ParseReport(string(message), r.ID, r.Action, tt.code)
			if err != nil || parsed.Result != tt.want || strings.Contains(string(message), "hunter2") {
				t.Errorf("report %s = %+v, %v; want %s, without the password", message, parsed, err, tt.want)
			}
			input, err := os.ReadFile(filepath.Join(o.AgentsDirectory, "input"))
			if ran := err == nil; ran != tt.ran {
				t.Errorf("the agent ran: %t; want %t", ran, tt.ran)
			}
			if want := "ip=192.0.2.1\npassword=hunter2\naction=" + string(tt.action) + "\n"; tt.ran && string(input) != want {
				t.Errorf("stdin = %q; want %q", input, want)
			}
		})
	}
}

// TestRunStops: the end of the pod ends the agent.
func TestRunStops(t *testing.T) {
	text, err := request(Off).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	o := files(t, text, "sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if got, err := Run(ctx, o); err != nil || got.Result != Failed || !strings.Contains(got.Error, "killed") {
		t.Errorf("Run = %+v, %v; want that the agent was killed", got, err)
	}
}

func TestRunRefuses(t *testing.T) {
	valid, err := request(Off).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "not JSON": "ip=192.0.2.1\npassword=hunter2", "unknown field": strings.Replace(string(valid), "{", `{"x":"hunter2",`, 1),
		"more after it": string(valid) + "{}", "reboot": strings.Replace(string(valid), `"off"`, `"reboot"`, 1),
		"program": strings.Replace(string(valid), "fence_x", "../sh", 1), "no target": strings.Replace(string(valid), `"n1"`, `""`, 1),
		"no end": strings.Replace(string(valid), `"notAfter"`, `"notafter2"`, 1), "too long": string(valid) + strings.Repeat(" ", MaxRequest),
		"no timeout": strings.Replace(string(valid), `"1m0s"`, `"0s"`, 1), "long timeout": strings.Replace(string(valid), `"1m0s"`, `"2h"`, 1),
	} {
		o := files(t, []byte(text), "exit 0")
		got, err := Run(t.Context(), o)
		if err == nil || got.Result != NotStarted || got.ExitCode() != 3 || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: Run = %+v, %v; want an error without the password", name, got, err)
		}
		if _, err := os.Stat(filepath.Join(o.AgentsDirectory, "input")); err == nil {
			t.Errorf("%s: the agent ran", name)
		}
		if _, err := os.Stat(o.Report); err == nil {
			t.Errorf("%s: there is a report", name)
		}
	}
	o := files(t, valid, "exit 0")
	o.Report = filepath.Join(o.AgentsDirectory, "none", "report")
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("Run without a place for the report succeeds")
	}
}

func TestRequestMarshal(t *testing.T) {
	for name, change := range map[string]func(*Request){
		"long id": func(r *Request) { r.ID = strings.Repeat("x", 101) },
		"cycle":   func(r *Request) { r.Action = "cycle" },
		"long":    func(r *Request) { r.Parameters["password"] = strings.Repeat("hunter2", MaxRequest/7) },
	} {
		r := request(Off)
		change(&r)
		if text, err := r.Marshal(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: Marshal = %d bytes, %v; want an error without the password", name, len(text), err)
		}
	}
	if text := fmt.Sprintf("%v %#v %s", request(Off), request(Off), request(Off)); strings.Contains(text, "hunter2") {
		t.Errorf("a request is printed as %s", text)
	}
}

func TestReport(t *testing.T) {
	r := Report{ID: "1", Action: Off, Result: Failed, Error: "a\n\x1b[0m<b>&\xff\"" + strings.Repeat("\\", 5000)}
	text := string(r.Marshal())
	if len(text) > MaxReport {
		t.Errorf("Marshal has %d bytes; want at most %d", len(text), MaxReport)
	}
	if got, err := ParseReport(text, "1", Off, 1); err != nil || got.Result != Failed {
		t.Errorf("ParseReport(%s) = %+v, %v; want failed", text, got, err)
	}
	for name, text := range map[string]string{
		"empty": "", "truncated": text[:len(text)-1], "other id": `{"id":"2","action":"off","result":"done"}`,
		"other action": `{"id":"1","action":"on","result":"done"}`, "unknown field": `{"id":"1","action":"off","result":"done","x":1}`,
		"two": `{"id":"1","action":"off","result":"done"}{}`, "reading": `{"id":"1","action":"off","result":"off"}`,
		"unknown result": `{"id":"1","action":"off","result":"ok"}`, "other exit status": `{"id":"1","action":"off","result":"failed"}`,
		"too long": `{"id":"1","action":"off","result":"done"}` + strings.Repeat(" ", MaxReport), "null": "null", "list": "[]",
	} {
		if got, err := ParseReport(text, "1", Off, 0); err == nil || got != (Report{}) {
			t.Errorf("%s: ParseReport(%q) = %+v, %v; want an error", name, text, got, err)
		}
	}
	// The exit status 2 is that of a usage error too: without the report it is no reading.
	if _, err := ParseReport("flag provided but not defined", "1", Status, 2); err == nil || !strings.Contains(err.Error(), "without a report") {
		t.Errorf("ParseReport of a usage error = %v; want that there is no report", err)
	}
}

func FuzzReport(f *testing.F) {
	for _, r := range []Report{
		{ID: "1", Action: Status, Result: ReadOff}, {ID: "1", Action: Status, Result: ReadOn},
		{ID: "1", Action: Status, Result: Failed, Error: "exit status 1: Connection timed out\x00"}, {ID: "2", Action: Off, Result: Done},
	} {
		f.Add(string(r.Marshal()), r.ExitCode())
	}
	f.Fuzz(func(t *testing.T, text string, code int) {
		r, err := ParseReport(text, "1", Status, code)
		switch {
		case err != nil:
			if r != (Report{}) {
				t.Errorf("ParseReport(%q, %d) = %+v with %v", text, code, r, err)
			}
			return
		case r.Result == ReadOff && code != 2, r.ID != "1", r.Action != Status, r.Result == Done, len(r.Error) > maxError:
			t.Errorf("ParseReport(%q, %d) = %+v", text, code, r)
		}
		again, err := ParseReport(string(r.Marshal()), "1", Status, code)
		if err != nil || again != r {
			t.Errorf("ParseReport of %+v = %+v, %v", r, again, err)
		}
	})
}

func FuzzRequest(f *testing.F) {
	text, err := request(Status).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"id":"1","target":"n1","agent":"fence_x","action":"off","notAfter":"2026-01-01T00:00:00.000000Z","timeout":"1s","parameters":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRequest(text)
		if err != nil {
			return
		}
		if r.Target == "" || r.Action != Status && r.Action != Off && r.Action != On || r.NotAfter.IsZero() || r.Timeout.Duration <= 0 {
			t.Errorf("ParseRequest(%q) = %#v", text, r)
		}
	})
}
