package control

import (
	"context"
	"net/http"
	"time"

	"github.com/evictd/evictd/agent/shutdown"
)

// Shutdown is how evictd stands to a shutdown of the node: what it would do, or
// does.
type Shutdown struct {
	At time.Time `json:"at"`
	// Phase is idle, stopping or ended. Manual tells that an operator began it.
	Phase  string `json:"phase"`
	Manual bool   `json:"manual"`
	// Began and Over are of the last shutdown of this boot; absent where there
	// was none, or it goes on.
	Began     time.Time `json:"began,omitzero"`
	Over      time.Time `json:"over,omitzero"`
	CalledOff bool      `json:"calledOff"`

	// Why lists every reason why evictd stops no pods; empty where it does.
	// DryRun tells that it would only tell.
	Why    List[string] `json:"why"`
	DryRun bool         `json:"dryRun"`

	// Stopped, Running and WouldStop count the pods of a shutdown that has
	// begun: those that have gone, those that have not, and those that dry run
	// left alone. A pod is counted once.
	Stopped   int `json:"stopped"`
	Running   int `json:"running"`
	WouldStop int `json:"wouldStop"`

	// NeedsSeconds is for how long a shutdown has to be held up, and
	// LimitSeconds for how long logind allows it; null where that is not known.
	// Held tells that evictd holds the lock for it.
	NeedsSeconds float64  `json:"needsSeconds"`
	LimitSeconds *float64 `json:"limitSeconds"`
	Held         bool     `json:"held"`
	// LogindError is what is wrong with logind, or with its limit.
	LogindError string `json:"logindError,omitempty"`

	// Groups are those in force, in the order in which they stop.
	Groups List[ShutdownGroup] `json:"groups"`
	// Current is the index of the group whose turn it is; null where none has it.
	Current *int `json:"current"`

	Last shutdown.Last `json:"last"`
}

// ShutdownGroup is a group and its pods.
type ShutdownGroup struct {
	Priority    int32             `json:"priority"` // the lowest
	TimeSeconds float64           `json:"timeSeconds"`
	Pods        List[ShutdownPod] `json:"pods"` // in the order of their waves
}

// ShutdownPod is a pod of a group.
type ShutdownPod struct {
	Pod string `json:"pod"`
	// Last tells that it stops after the others of its group.
	Last bool `json:"last"`
	// Status is planned, or, once a shutdown has begun, waiting, asked, killed,
	// gone or pretended.
	Status string `json:"status"`
	// GraceSeconds is what it would be given at most, or was.
	GraceSeconds float64 `json:"graceSeconds"`
	Refused      bool    `json:"refused,omitempty"` // it came too late
}

// commandTimeout is how long a command may take to be accepted.
const commandTimeout = 2 * time.Second

// addShutdown adds what concerns a shutdown.
func (s *Server) addShutdown(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/shutdown", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, http.StatusOK, s.source.Shutdown())
	})
	command := func(pattern string, do func(context.Context) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
			defer cancel()
			if err := do(ctx); err != nil {
				s.fail(w, http.StatusConflict, err.Error())
				return
			}
			s.answer(w, http.StatusOK, s.source.Shutdown())
		})
	}
	command("POST /v1/shutdown/begin", s.source.BeginShutdown)
	command("POST /v1/shutdown/cancel", s.source.CancelShutdown)
}

// Shutdown asks how the daemon stands to a shutdown.
func (c *Client) Shutdown(ctx context.Context) (Shutdown, error) {
	return ask[Shutdown](ctx, c, http.MethodGet, "/v1/shutdown")
}

// BeginShutdown has the daemon stop the pods as if the node went down.
func (c *Client) BeginShutdown(ctx context.Context) (Shutdown, error) {
	return ask[Shutdown](ctx, c, http.MethodPost, "/v1/shutdown/begin")
}

// CancelShutdown has it stop no further pods.
func (c *Client) CancelShutdown(ctx context.Context) (Shutdown, error) {
	return ask[Shutdown](ctx, c, http.MethodPost, "/v1/shutdown/cancel")
}
