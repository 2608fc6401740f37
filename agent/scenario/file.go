package scenario

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// file is the YAML form of a scenario.
type file struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	ClosedLoop bool           `yaml:"closedLoop"`
	Node       fileNode       `yaml:"node"`
	Config     *configuration `yaml:"config"`
	Pods       []filePod      `yaml:"pods"`
	Steps      []fileStep     `yaml:"steps"`
}

type fileNode struct {
	Capacity            fileCapacity `yaml:"capacity"`
	Filesystems         layout       `yaml:"filesystems"`
	CapacityForOOMScore *amount      `yaml:"capacityForOOMScore"`
	System              fileSystem   `yaml:"system"`
}

// fileSystem is the usage outside the pods.
type fileSystem struct {
	Memory *amount `yaml:"memory"`
}

type fileCapacity struct {
	Memory            *amount `yaml:"memory"`
	AllocatableMemory *amount `yaml:"allocatableMemory"`
	NodeFs            *amount `yaml:"nodefs"`
	NodeFsInodes      *amount `yaml:"nodefsInodes"`
	ImageFs           *amount `yaml:"imagefs"`
	ImageFsInodes     *amount `yaml:"imagefsInodes"`
	ContainerFs       *amount `yaml:"containerfs"`
	ContainerFsInodes *amount `yaml:"containerfsInodes"`
	PIDs              *amount `yaml:"pids"`
}

type filePod struct {
	Namespace                     string           `yaml:"namespace"`
	Name                          string           `yaml:"name"`
	UID                           string           `yaml:"uid"`
	Priority                      *int32           `yaml:"priority"`
	PriorityClassName             string           `yaml:"priorityClassName"`
	Static                        bool             `yaml:"static"`
	Mirror                        bool             `yaml:"mirror"`
	TerminationGracePeriodSeconds *int64           `yaml:"terminationGracePeriodSeconds"`
	Tolerations                   []fileToleration `yaml:"tolerations"`
	Resources                     fileResources    `yaml:"resources"`
	EmptyDirs                     []fileEmptyDir   `yaml:"emptyDirs"`
	Volumes                       []fileVolume     `yaml:"volumes"`
	Containers                    []fileContainer  `yaml:"containers"`
	InitContainers                []fileInit       `yaml:"initContainers"`
	EphemeralContainers           []fileEphemeral  `yaml:"ephemeralContainers"`
	Overhead                      resources        `yaml:"overhead"`
	Usage                         podUsage         `yaml:"usage"`
	NoStats                       bool             `yaml:"noStats"`
}

type fileToleration struct {
	Key               string `yaml:"key"`
	Operator          string `yaml:"operator"`
	Value             string `yaml:"value"`
	Effect            string `yaml:"effect"`
	TolerationSeconds *int64 `yaml:"tolerationSeconds"` // not used for NoSchedule
}

type fileResources struct {
	Requests resources `yaml:"requests"`
	Limits   resources `yaml:"limits"`
}

type fileEmptyDir struct {
	Name      string    `yaml:"name"`
	Medium    string    `yaml:"medium"`
	SizeLimit *quantity `yaml:"sizeLimit"`
}

type fileVolume struct {
	Name string           `yaml:"name"`
	Type evict.VolumeType `yaml:"type"`
}

type fileContainer struct {
	Name     string         `yaml:"name"`
	Requests resources      `yaml:"requests"`
	Limits   resources      `yaml:"limits"`
	Usage    containerUsage `yaml:"usage"`
}

type fileInit struct {
	fileContainer `yaml:",inline"`
	RestartPolicy string `yaml:"restartPolicy"`
}

type fileEphemeral struct {
	Name  string         `yaml:"name"`
	Usage containerUsage `yaml:"usage"`
}

// podUsage is the usage of a pod as a whole. An absent field leaves the value
// unchanged.
type podUsage struct {
	Memory        *amount           `yaml:"memory"`
	PIDs          *amount           `yaml:"pids"`
	Volumes       map[string]amount `yaml:"volumes"`
	VolumesInodes map[string]amount `yaml:"volumesInodes"`
}

type containerUsage struct {
	Memory     *amount `yaml:"memory"`
	Rootfs     *amount `yaml:"rootfs"`
	Logs       *amount `yaml:"logs"`
	Inodes     *amount `yaml:"inodes"`
	LogsInodes *amount `yaml:"logsInodes"`
	Images     *amount `yaml:"images"`
}

type fileStep struct {
	At           *instant             `yaml:"at"`
	Signals      signals              `yaml:"signals"`
	FileCache    fileCache            `yaml:"fileCache"`
	Stalled      *bool                `yaml:"reclaimStalled"`
	Usage        map[string]stepUsage `yaml:"usage"`
	AfterReclaim fileReclaimed        `yaml:"afterReclaim"`
	Gone         []string             `yaml:"gone"`
	Deleted      map[string]instant   `yaml:"deleted"`
	Add          []filePod            `yaml:"add"`
	Admit        []filePod            `yaml:"admit"`
}

// stepUsage is the change of a pod's usage in a step.
type stepUsage struct {
	podUsage   `yaml:",inline"`
	Containers map[string]containerUsage `yaml:"containers"`
}

// fileReclaimed has the values of signals after each kind of node-level reclaim.
type fileReclaimed struct {
	Containers signals `yaml:"containers"`
	Images     signals `yaml:"images"`
}

// signals maps signals to their available amount; nil means that the signal could not
// be read.
type signals map[signal.Signal]*amount

// fileCache maps memory signals to the active file cache that the signal counts as
// used, in bytes.
type fileCache map[signal.Signal]amount

// quantity is a quantity of at least 0 that keeps its notation.
type quantity struct{ resource.Quantity }

// DecodeYAML decodes the quantity.
func (q *quantity) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	text, ok := d.Amount(n, "a quantity such as 500Mi")
	if !ok {
		return
	}
	parsed, err := signal.ParseQuantity(text)
	switch {
	case err != nil:
		d.Errorf("", "%v; want one such as 500Mi, 1.5Gi or 2000", err)
	case parsed.Sign() < 0:
		d.Errorf("", "%s is below 0", strict.Quote(text))
	}
	q.Quantity = parsed
}

// amount is a whole number of at least 0, written as a quantity. A fraction is rounded
// up.
type amount int64

// DecodeYAML decodes the amount.
func (a *amount) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	var q quantity
	q.DecodeYAML(d, n)
	*a = amount(q.Value())
}

// or returns the amount, or absent if a is nil.
func (a *amount) or(absent int64) int64 {
	if a == nil {
		return absent
	}
	return int64(*a)
}

// instant is a time relative to the start of the scenario.
type instant time.Duration

// DecodeYAML decodes a duration; 0 needs no unit.
func (i *instant) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	text, ok := d.Amount(n, "a duration such as 90s")
	if !ok {
		return
	}
	at, err := time.ParseDuration(text)
	switch {
	case err != nil:
		d.Errorf("", "%s is not a duration; want one such as 90s or 1m30s", strict.Quote(text))
	case at < 0:
		d.Errorf("", "%s is before the start", strict.Quote(text))
	}
	*i = instant(at)
}

// layout is the name of an evict.Layout.
type layout struct{ evict.Layout }

// UnmarshalText parses the name.
func (l *layout) UnmarshalText(text []byte) error {
	switch string(text) {
	case "single":
		l.Layout = evict.SingleFs
	case "imagefs":
		l.Layout = evict.ImageFs
	case "split":
		l.Layout = evict.SplitFs
	default:
		return fmt.Errorf("%s is not a layout; want single, imagefs or split", strict.Quote(string(text)))
	}
	return nil
}

// configuration is the configuration of the scenario.
type configuration struct{ *config.Config }

// DecodeYAML decodes the fields of an AgentConfiguration.
func (c *configuration) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	c.Config = config.FromNode(d, n)
}
