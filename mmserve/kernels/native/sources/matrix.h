/* Products of many rows by the processor's matrix tiles (Intel AMX), where it has them. */

#ifndef MMSERVE_MATRIX_H
#define MMSERVE_MATRIX_H

#include "parts.h"

/* Whether there are tiles and this process may use them. */
int has_matrix_tiles(void);

/* As `multiply`, without bias and activation; `finish` is told of each piece that is done. */
typedef void Finish(const struct product *product, float *y, long rows, long first_panel,
                    long end_panel);
void multiply_by_tiles(const Member *me, const float *x, float *y, long rows,
                       const struct product *product, Finish *finish);

#endif
