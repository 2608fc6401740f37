package pods

import (
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri/critest"
)

func TestAnnotations(t *testing.T) {
	for _, tt := range []struct {
		name       string
		a          map[string]string
		trust      []string
		priority   int64 // 1<<40: nil
		request    int64 // -1: nil
		critical   bool
		ignored    string
		wantOrigin string
	}{
		{name: "none", priority: 1 << 40, request: -1},
		{name: "of the operator", a: map[string]string{annotationPriority: "100", annotationRequest: "512Mi"}, priority: 100, request: 512 << 20, wantOrigin: "annotation"},
		{name: "negative priority", a: map[string]string{annotationPriority: "-2147483648"}, priority: -1 << 31, request: -1},
		{name: "critical", a: map[string]string{annotationCritical: "true"}, priority: 2_000_000_000, request: -1, critical: true},
		{name: "critical and a priority", a: map[string]string{annotationCritical: "true", annotationPriority: "1"}, priority: 2_000_000_000, request: -1, critical: true},
		{name: "not critical", a: map[string]string{annotationCritical: "false"}, priority: 1 << 40, request: -1},
		{name: "a kubelet's pod", a: map[string]string{evict.ConfigSourceAnnotation: "api", annotationPriority: "100", annotationRequest: "512Mi", annotationCritical: "true"},
			priority: 1 << 40, request: -1, ignored: "trustAnnotations"},
		{name: "a kubelet's pod, another namespace trusted", a: map[string]string{evict.ConfigSourceAnnotation: "api", annotationPriority: "100"}, trust: []string{"other"},
			priority: 1 << 40, request: -1, ignored: "trustAnnotations"},
		{name: "a kubelet's pod in a trusted namespace", a: map[string]string{evict.ConfigSourceAnnotation: "api", annotationPriority: "100"}, trust: []string{"default"}, priority: 100, request: -1},
		{name: "priority too large", a: map[string]string{annotationPriority: "2147483648"}, priority: 1 << 40, request: -1, ignored: "not a whole number from -2147483648"},
		{name: "priority with a space", a: map[string]string{annotationPriority: " 1"}, priority: 1 << 40, request: -1, ignored: "not a whole number"},
		{name: "priority empty", a: map[string]string{annotationPriority: ""}, priority: 1 << 40, request: -1, ignored: `evictd.io/priority=""`},
		{name: "critical misspelt", a: map[string]string{annotationCritical: "True"}, priority: 1 << 40, request: -1, ignored: "neither true nor false"},
		{name: "request misspelt", a: map[string]string{annotationRequest: "512 Mi"}, priority: 1 << 40, request: -1, ignored: "not a quantity"},
		{name: "request negative", a: map[string]string{annotationRequest: "-1"}, priority: 1 << 40, request: -1, ignored: "not a quantity"},
		{name: "unknown", a: map[string]string{"evictd.io/prioritaet": "1"}, priority: 1 << 40, request: -1, ignored: "unknown annotation"},
		{name: "hostile value", a: map[string]string{annotationPriority: "\x1b[2J" + strings.Repeat("x", 1<<16)}, priority: 1 << 40, request: -1, ignored: `"\x1b[2Jxxx`},
		{name: "hostile key", a: map[string]string{"evictd.io/\x1b[2J\n": ""}, priority: 1 << 40, request: -1, ignored: `evictd.io/\x1b[2J\n=`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, true)
			p := n.addPod(critest.Pod{Annotations: tt.a, Containers: []critest.Container{{PID: 100}}})
			i := n.synced(func(o *Options) { o.TrustAnnotations = tt.trust })
			pod := i.Measure(time.Now()).Pods[0]
			priority, request := int64(1<<40), int64(-1)
			if pod.Priority != nil {
				priority = int64(*pod.Priority)
			}
			if q := pod.Resources.Requests.Memory; q != nil {
				request = q.Value()
			}
			if priority != tt.priority || request != tt.request || pod.Critical() != tt.critical {
				t.Errorf("priority %d, request %d, critical %t; want %d, %d, %t", priority, request, pod.Critical(), tt.priority, tt.request, tt.critical)
			}
			explanation := i.Describe(p.UID)
			ignored := strings.Join(explanation.Ignored, "\n")
			if (ignored == "") != (tt.ignored == "") || !strings.Contains(ignored, tt.ignored) {
				t.Errorf("ignored = %.300q; want %q", ignored, tt.ignored)
			}
			if len(ignored) > 2000 {
				t.Errorf("%d bytes about ignored annotations", len(ignored))
			}
			if tt.wantOrigin != "" && explanation.RequestOrigin != tt.wantOrigin {
				t.Errorf("request origin = %q; want %q", explanation.RequestOrigin, tt.wantOrigin)
			}
		})
	}
}

func FuzzAnnotate(f *testing.F) {
	for _, v := range []string{"100", "-1", "true", "false", "512Mi", "1e3", "1e999999999", "9999999999999999999E", "0x10", " 1", "", "\x00", "NaN"} {
		f.Add(annotationPriority, v)
		f.Add(annotationRequest, v)
		f.Add(annotationCritical, v)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		p := pod{spec: evict.Pod{QoS: evict.BestEffort}}
		err := p.annotate(key, value)
		if err != nil && (p.spec.Priority != nil || p.spec.Resources.Requests.Memory != nil) {
			t.Errorf("annotate(%q, %q) = %v, and was applied", key, value, err)
		}
		if p.spec.Request("memory") < 0 {
			t.Errorf("annotate(%q, %q): request %d", key, value, p.spec.Request("memory"))
		}
		quoted(value)
	})
}
