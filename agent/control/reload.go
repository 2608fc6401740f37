package control

import (
	"context"
	"net/http"
	"time"
)

// ConfigChange is a field whose value is another one than before. A value that
// is absent is empty.
type ConfigChange struct {
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// reloadTimeout is how long the configuration may take to be read and to come
// into force: less than a client waits, so that it gets the reason.
const reloadTimeout = answerTimeout - time.Second

// addReload adds the command that reads the configuration again. It answers with
// the configuration in force, or with what is wrong with the new one.
func (s *Server) addReload(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), reloadTimeout)
		defer cancel()
		if err := s.source.Reload(ctx); err != nil {
			s.fail(w, http.StatusConflict, err.Error())
			return
		}
		s.answer(w, http.StatusOK, s.source.Status().Config)
	})
}

// Reload has the daemon read its configuration again, and returns the one in
// force.
func (c *Client) Reload(ctx context.Context) (Config, error) {
	return ask[Config](ctx, c, http.MethodPost, "/v1/reload")
}
