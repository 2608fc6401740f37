package webhook

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MaxBody is the length limit of a request in bytes. The API server accepts objects of up to 3 MiB.
	MaxBody = 4 << 20
	// decisions is how many reviews are decided on at the same time, so that many requests leave time for other work.
	decisions = 4
)

// result is what became of a request: the value of a label.
type result string

const (
	restricted result = "restricted" // the requirement was added
	unchanged  result = "unchanged"  // there is nothing to add
	invalid    result = "invalid"    // the pod stays as it is, because the annotation or the selector can't be read
	denied     result = "denied"     // the selector would be too large
	malformed  result = "malformed"  // the request is no AdmissionReview
	panicked   result = "panic"
)

var allResults = []result{restricted, unchanged, invalid, denied, malformed, panicked}

// Handler answers AdmissionReviews. Its metrics are those that it collects.
type Handler struct {
	prometheus.Collector
	reviews *prometheus.CounterVec
	slots   chan struct{}
}

// New returns a handler.
func New() *Handler {
	reviews := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "evictd_affinity_admissions_total", Help: "Requests to the mutating webhook for pods.",
	}, []string{"result"})
	for _, r := range allResults {
		reviews.WithLabelValues(string(r))
	}
	return &Handler{Collector: reviews, reviews: reviews, slots: make(chan struct{}, decisions)}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, result, err := h.answer(w, r, review)
	h.reviews.WithLabelValues(string(result)).Inc()
	if err != nil {
		status := http.StatusBadRequest
		if result == panicked {
			status = http.StatusInternalServerError
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// An error is that of a client that has gone.
	_, _ = w.Write(answer)
}

// answer returns the AdmissionReview that answers the request, as review decides. An error says why the request is none.
// A panic is one: a text must not end unseen what has been asked.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, review func([]byte) ([]byte, result, error)) (text []byte, how result, err error) {
	defer func() {
		if p := recover(); p != nil {
			text, how, err = nil, panicked, fmt.Errorf("internal error: %v", p)
		}
	}()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, malformed, fmt.Errorf("content type is %q; want application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		return nil, malformed, fmt.Errorf("read the request: %w", err)
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-r.Context().Done():
		return nil, malformed, r.Context().Err()
	}
	return review(body)
}

// review answers an AdmissionReview of the version v1.
func review(body []byte) ([]byte, result, error) {
	var in admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, malformed, fmt.Errorf("decode the AdmissionReview: %w", err)
	}
	if in.APIVersion != admissionv1.SchemeGroupVersion.String() || in.Kind != "AdmissionReview" {
		return nil, malformed, fmt.Errorf("the request is %.100q of %.100q; want AdmissionReview of %s", in.Kind, in.APIVersion, admissionv1.SchemeGroupVersion)
	}
	if in.Request == nil || in.Request.UID == "" {
		return nil, malformed, fmt.Errorf("the AdmissionReview has no request")
	}
	response, result := decide(in.Request)
	response.UID = in.Request.UID
	answer, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: in.APIVersion, Kind: in.Kind}, Response: response,
	})
	if err != nil {
		return nil, malformed, fmt.Errorf("encode the answer: %w", err)
	}
	return answer, result, nil
}
