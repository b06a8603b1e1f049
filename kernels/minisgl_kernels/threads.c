/* Compiled to find out whether the compiler has OpenMP, and its library. */

int minisgl_threads(void)
{
    int count = 0;
#pragma omp parallel reduction(+ : count)
    count += 1;
    return count;
}
