package plan

import (
	"cmp"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

// minJobDeadline is the least time for an act or a reading by a Job: its pod must be scheduled and started, and its
// result reported.
const minJobDeadline = 20 * time.Second

// executors are the values of the setting executor.
var executors = map[string]fence.Executor{"local": "", "job": fence.InJob}

const executorRemedy = "write local, which runs the fence agent as a child process of evictd-controller, or job"

// executor returns where the agent of a method runs. The default of cluster-fence-config is for fence agents only:
// agents that are built in always run in evictd-controller.
func (m *method) executor() fence.Executor {
	text := m.setting("executor")
	if text == "" && FenceAgent(m.template.name) {
		return m.byPolicy
	}
	return executors[text]
}

// checkExecutor reports what keeps Jobs from executing a method.
func (p *parser) checkExecutor(m *method) {
	if m.executor() != fence.InJob {
		return
	}
	v := cmp.Or(m.layer.values["executor"], property{key: "executor"})
	if !FenceAgent(m.template.name) {
		m.doc.fail(v.line, v.key, "is job, but only fence agents run in Jobs: "+m.template.name+" is built in", "remove the line")
		return
	}
	if p.noJobs {
		m.doc.fail(v.line, v.key, "is job, but evictd-controller has no image for Jobs", "start it with --executor-image, or write executor=local")
	}
	p.jobs = true
	text := m.setting("timeout")
	if d, err := properties.ParseDuration(text); err == nil && d < minJobDeadline {
		v := cmp.Or(m.layer.values["timeout"], property{key: "timeout"})
		m.doc.fail(v.line, v.key, fmt.Sprintf("is %s, which is too short for a Job: its pod must be scheduled and started first", text),
			fmt.Sprintf("write at least %s", minJobDeadline))
	}
}
