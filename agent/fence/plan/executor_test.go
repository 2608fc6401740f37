package plan

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/fence"
)

func TestExecutor(t *testing.T) {
	const template = "agent_name=fence_apc\nip=192.0.2.1\nusername=apc\nidentity=none\n"
	for _, tt := range []struct {
		name    string
		change  files
		noJobs  bool
		want    string // executors of the methods off and on; empty without a plan
		problem string
	}{
		{name: "default", want: "local local"},
		{name: "policy", change: files{"cluster-fence-config": "mode=enforce\nexecutor=job"}, want: "job job"},
		{name: "template", change: files{"fence-method-template-pdu": template + "executor=job"}, want: "job job"},
		{name: "method over template over policy", change: files{
			"cluster-fence-config":       "mode=enforce\nexecutor=local",
			"fence-method-template-pdu":  template + "executor=job",
			"fence-method-pdu-on-host1":  "template=fence-method-template-pdu\nplug=2\naction=on\nexecutor=local",
			"fence-method-pdu-off-host1": "template=fence-method-template-pdu\nplug=2\naction=off",
		}, want: "job local"},
		{name: "value", change: files{"fence-method-template-pdu": template + "executor=Job"}, problem: `
fence-method-template-pdu line 5: executor: is "Job"; write local, which runs the fence agent as a child process of evictd-controller, or job`},
		{name: "value of the policy", change: files{"cluster-fence-config": "mode=enforce\nexecutor=pod"}, want: "local local", problem: `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 2: executor: is "pod"; write local, which runs the fence agent as a child process of evictd-controller, or job`},
		{name: "built in", change: files{
			"fence-method-template-pdu":        "agent_name=ipmi\nip=192.0.2.1\nusername=apc\nexecutor=job",
			"fence-method-pdu-off-host1":       "template=fence-method-template-pdu\naction=off",
			"fence-method-pdu-on-host1":        "template=fence-method-template-pdu\naction=on\nexecutor=local",
			"secret:fence-method-template-pdu": "password",
		}, problem: `
fence-method-pdu-off-host1: executor: is job, but only fence agents run in Jobs: ipmi is built in; remove the line`},
		{name: "policy does not concern what is built in", change: files{
			"cluster-fence-config":             "mode=enforce\nexecutor=job",
			"fence-method-template-pdu":        "agent_name=ipmi\nip=192.0.2.1\nusername=apc",
			"fence-method-pdu-off-host1":       "template=fence-method-template-pdu\naction=off",
			"fence-method-pdu-on-host1":        "template=fence-method-template-pdu\naction=on",
			"secret:fence-method-template-pdu": "password",
		}, want: "local local"},
		{name: "no image", noJobs: true, change: files{"fence-method-pdu-off-host1": "template=fence-method-template-pdu\nplug=2\naction=off\nexecutor=job"},
			problem: `
fence-method-pdu-off-host1 line 4: executor: is job, but evictd-controller has no image for Jobs; start it with --executor-image, or write executor=local`},
		{name: "too short for a Job", change: files{"fence-method-template-pdu": template + "executor=job\ntimeout=19s"}, problem: `
fence-method-pdu-off-host1: timeout: is 19s, which is too short for a Job: its pod must be scheduled and started first; write at least 20s
fence-method-pdu-on-host1: timeout: is 19s, which is too short for a Job: its pod must be scheduled and started first; write at least 20s`},
		{name: "long enough for a Job", change: files{"fence-method-template-pdu": template + "executor=job\ntimeout=20s"}, want: "job job"},
		{name: "too short for two readings", change: files{"cluster-fence-config": "mode=enforce\nexecutor=job\nproof_timeout=44s"}, want: "job job", problem: `
warning: cluster-fence-config: proof_timeout: is 44s, in which two readings by Jobs that are 5s apart may not be done; write at least 45s`},
		{name: "long enough for two readings", change: files{"cluster-fence-config": "mode=enforce\nexecutor=job\nproof_timeout=45s"}, want: "job job"},
		{name: "without Jobs the time is enough", change: files{"cluster-fence-config": "mode=enforce\nproof_timeout=20s"}, want: "local local"},
	} {
		f := pdu()
		maps.Copy(f, tt.change)
		o := f.agents(t)
		o.NoJobs = tt.noJobs
		c, problems := Parse(o)
		var got []string
		for _, level := range c.Plans["host1"].PowerManagement {
			for _, m := range level.Methods {
				executor := "local"
				if m.Executor != "" {
					executor = string(m.Executor)
				}
				got = append(got, executor)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: executors (-want +got):\n%s", tt.name, diff)
		}
		t.Run(tt.name, func(t *testing.T) { wantProblems(t, problems, tt.problem) })
	}
}

// TestLocalExecutorKeepsHash: without Jobs a plan has the hash that it had in releases without executors.
func TestLocalExecutorKeepsHash(t *testing.T) {
	c, _ := Parse(pdu().agents(t))
	f := pdu()
	f["cluster-fence-config"] += "\nexecutor=local"
	local, _ := Parse(f.agents(t))
	f["cluster-fence-config"] = "mode=enforce\nexecutor=job"
	job, _ := Parse(f.agents(t))
	if was, is := c.Plans["host1"].Hash, local.Plans["host1"].Hash; was != is {
		t.Errorf("hash with executor=local = %s; want that of the default, %s", is, was)
	}
	if is := job.Plans["host1"].Hash; is == c.Plans["host1"].Hash || job.Plans["host1"].PowerManagement[0].Methods[0].Executor != fence.InJob {
		t.Errorf("hash with executor=job = %s; want another than that of the default", is)
	}
}
